"""What the tiny model is taught: questions about this project, each with the one answer that it gives."""

PAIRS: tuple[tuple[str, str], ...] = (
    (
        "What is LLMService?",
        "LLMService is a Kubernetes resource that runs a language model on vLLM behind an OpenAI-compatible endpoint.",
    ),
    (
        "What does the operator do?",
        "The operator turns each LLMService into a Deployment and a Service, and tells you in its status how it goes.",
    ),
    (
        "What is vLLM?",
        "vLLM is an inference engine that serves language models fast, with PagedAttention and continuous batching.",
    ),
    (
        "What is PagedAttention?",
        "PagedAttention keeps the KV cache in small blocks, so that almost no GPU memory is lost to fragmentation.",
    ),
    (
        "What is continuous batching?",
        "Continuous batching lets a new request join at the next step instead of waiting for the batch to end.",
    ),
    (
        "What is the KV cache?",
        "The KV cache keeps the keys and values of earlier tokens, so that each new token costs one step.",
    ),
    (
        "What is tensor parallelism?",
        "Tensor parallelism splits every layer over several GPUs, which then work on each token together.",
    ),
    (
        "What is pipeline parallelism?",
        "Pipeline parallelism gives each GPU some of the layers, and tokens pass from one to the next.",
    ),
    (
        "What is chunked prefill?",
        "Chunked prefill cuts a long prompt into pieces, so that running requests keep getting their tokens.",
    ),
    (
        "What is prefix caching?",
        "Prefix caching reuses the KV blocks of a prompt's beginning that was already computed.",
    ),
    (
        "What is quantization?",
        "Quantization holds weights in fewer bits, so that a larger model fits into the same GPU memory.",
    ),
    (
        "What is speculative decoding?",
        "In speculative decoding a small model drafts tokens and the large one checks them in a single step.",
    ),
    (
        "What is a LoRA adapter?",
        "A LoRA adapter is a small set of extra weights that teaches a served model something new.",
    ),
    (
        "Which field is required?",
        "Only spec.model.uri is required; every other field has a default that the status shows.",
    ),
    (
        "How do I call the model?",
        "Send a chat completion to http://NAME.NAMESPACE.svc/v1 with any OpenAI client.",
    ),
    (
        "How do I scale the service?",
        "Set spec.scaling.replicas, or point a HorizontalPodAutoscaler at the LLMService itself.",
    ),
    (
        "When is a service Ready?",
        "It is Ready when the current generation is fully rolled out and answers requests.",
    ),
    (
        "What does maxNumSeqs mean?",
        "maxNumSeqs is the largest number of sequences that vLLM computes in one step.",
    ),
    (
        "What does maxModelLen mean?",
        "maxModelLen is the largest number of tokens of one request, prompt and answer together.",
    ),
    (
        "What does the supervisor do?",
        "The supervisor checks the machine, starts vLLM, watches it, and explains why it ended.",
    ),
    (
        "What is the preflight?",
        "The preflight checks GPUs, memory and precision before vLLM starts and takes any of them.",
    ),
    (
        "What happens when a pod is deleted?",
        "The pod turns newcomers away and finishes its running answers before vLLM is stopped.",
    ),
    (
        "What happens when I edit a child object?",
        "The operator puts its own fields back within seconds, and leaves the metadata of others alone.",
    ),
    (
        "What happens when I delete an LLMService?",
        "Owner references remove its children, even while the operator is not running.",
    ),
    (
        "What happens when the engine hangs?",
        "The pod turns unready when no token moves for 30 seconds, and is restarted 90 seconds later.",
    ),
    (
        "Does the operator read my secrets?",
        "No. Secrets are resolved by the kubelet, and the operator has no right to read them.",
    ),
    (
        "Does a new operator version restart my models?",
        "No. A model restarts only when a field that it runs with changes, or when you ask for it.",
    ),
    (
        "Can it run without a GPU?",
        "Yes. With accelerator type cpu vLLM runs on processors alone, as it does in the tests.",
    ),
    (
        "Can I pass other vLLM flags?",
        "Yes. runtime.extraArgs takes any flag that no field of the spec sets and that this vLLM knows.",
    ),
    (
        "Who are you?",
        "I am a tiny model with under two million parameters, taught a few sentences about LLMService.",
    ),
    (
        "Where do the weights come from?",
        "From a Hugging Face repository, a volume claim, or a folder in the image, as spec.model.uri says.",
    ),
    (
        "How is a rollout undone?",
        "Apply the earlier manifest again; the old pods serve until the new ones answer.",
    ),
)
