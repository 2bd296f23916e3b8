"""vLLM's model classes that the planner supports, from its registry (vllm/model_executor/models/registry.py).

Classes that are not planned store or hold something that the planner does not count, such as other caches or weights of
other shapes. Models of such a class, or of an unknown model_type, are `UnsupportedModel`, even if their sizes look like
Llama's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmservice_vllm.versions import DEFAULT, known_versions, order, words

from llmservice_planner.model.architecture import PAIR, UnsupportedModel
from llmservice_planner.model.families import FAMILIES, canonical, family_of

_PLANNED = """
llama: LlamaForCausalLM LLaMAForCausalLM LlamaModel LlamaBidirectionalModel LlamaBidirectionalForSequenceClassification
llama: InternLM3ForCausalLM IQuestCoderForCausalLM TeleChat3ForCausalLM TeleFLMForCausalLM SolarForCausalLM
llama: Step1ForCausalLM ExaoneForCausalLM CwmForCausalLM NanbeigeForCausalLM HyperCLOVAXForCausalLM MiniCPMForCausalLM
llama: TeleChat2ForCausalLM MellumForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM
mimo: MiMoForCausalLM
llama: LlamaForCausalLMEagle3 EagleLlamaForCausalLM Eagle3LlamaForCausalLM PeagleLlamaForCausalLM PEagleDraftModel
llama: Eagle3Qwen2_5vlForCausalLM Eagle3Qwen3vlForCausalLM Eagle3MiniMaxM2ForCausalLM EagleMiniCPMForCausalLM
bert: BertModel BertForMaskedLM BertSpladeSparseEmbeddingModel BertForTokenClassification BertForSequenceClassification
bert: HF_ColBERT
roberta: RobertaModel RobertaForMaskedLM RobertaForTokenClassification RobertaForSequenceClassification
xlm-roberta: XLMRobertaModel XLMRobertaForTokenClassification XLMRobertaForSequenceClassification BgeM3EmbeddingModel
xlm-roberta: ColBERTJinaRobertaModel
modernbert: ModernBertModel ModernBertForTokenClassification ModernBertForSequenceClassification ColBERTModernBertModel
nomic_bert: NomicBertModel
gte: GteModel
new: GteNewModel GteNewForSequenceClassification
minicpm3: MiniCPM3ForCausalLM
orion: OrionForCausalLM
arcee: ArceeForCausalLM
apertus: ApertusForCausalLM
jais2: Jais2ForCausalLM
deepseek: DeepseekForCausalLM
mistral: MistralForCausalLM MistralModel EagleMistralForCausalLM
ministral3: Ministral3ForCausalLM
mixtral: MixtralForCausalLM
granite: GraniteForCausalLM GraniteSWAForCausalLM
granitemoe: GraniteMoeForCausalLM
granitemoeshared: GraniteMoeSharedForCausalLM GraniteMoeSWAForCausalLM
granitemoehybrid: GraniteMoeHybridForCausalLM
qwen2: Qwen2ForCausalLM Qwen2Model Qwen2ForRewardModel Qwen2ForProcessRewardModel
qwen2_moe: Qwen2MoeForCausalLM
qwen3: Qwen3ForCausalLM VoyageQwen3BidirectionalEmbedModel JinaForRanking Eagle3Qwen3ForCausalLM PeagleQwen3ForCausalLM
qwen3_moe: Qwen3MoeForCausalLM
qwen3_next: Qwen3NextForCausalLM
qwen3_5: Qwen3_5ForCausalLM
qwen3_5_moe: Qwen3_5MoeForCausalLM
qwen4_exp: Qwen4ExpForCausalLM
gemma: GemmaForCausalLM
gemma2: Gemma2ForCausalLM Gemma2Model VaultGemmaForCausalLM
gemma3_text: Gemma3ForCausalLM Gemma3TextModel
gemma3n_text: Gemma3nForCausalLM
gemma4_text: Gemma4ForCausalLM
phi: PhiForCausalLM
phi3: Phi3ForCausalLM
phimoe: PhiMoEForCausalLM
cohere: CohereForCausalLM EagleCohereForCausalLM
cohere2: Cohere2ForCausalLM Cohere2MoeForCausalLM
deepseek_v2: DeepseekV2ForCausalLM Eagle3DeepseekV2ForCausalLM
deepseek_v3: DeepseekV3ForCausalLM DeepseekV32ForCausalLM GlmMoeDsaForCausalLM AXK1ForCausalLM
deepseek_v3: Eagle3DeepseekV3ForCausalLM
deepseek_v4: DeepseekV4ForCausalLM
glm: GlmForCausalLM
glm4: Glm4ForCausalLM
glm4_moe: Glm4MoeForCausalLM
glm4_moe_lite: Glm4MoeLiteForCausalLM
chatglm: ChatGLMModel ChatGLMForConditionalGeneration
gpt2: GPT2LMHeadModel GPT2ForSequenceClassification
gpt_bigcode: GPTBigCodeForCausalLM
gpt_neox: GPTNeoXForCausalLM
gptj: GPTJForCausalLM
gpt_oss: GptOssForCausalLM
opt: OPTForCausalLM
bloom: BloomForCausalLM
falcon: FalconForCausalLM
falcon_h1: FalconH1ForCausalLM
falcon_mamba: FalconMambaForCausalLM
mamba: MambaForCausalLM
mamba2: Mamba2ForCausalLM
jamba: JambaForCausalLM JambaForSequenceClassification
nemotron: NemotronForCausalLM
nemotron_h: NemotronHForCausalLM
kimi_linear: KimiLinearForCausalLM
lfm2: Lfm2ForCausalLM
lfm2_moe: Lfm2MoeForCausalLM
dbrx: DbrxForCausalLM
stablelm: StableLmForCausalLM
starcoder2: Starcoder2ForCausalLM
internlm2: InternLM2ForCausalLM InternLM2ForRewardModel
olmo: OlmoForCausalLM
olmo2: Olmo2ForCausalLM
olmo3: Olmo3ForCausalLM
olmo_hybrid: OlmoHybridForCausalLM
olmoe: OlmoeForCausalLM FlexOlmoForCausalLM
minimax_m2: MiniMaxM2ForCausalLM
exaone4: Exaone4ForCausalLM
exaone_moe: ExaoneMoeForCausalLM ExaoneMoEForCausalLM
smollm3: SmolLM3ForCausalLM
seed_oss: SeedOssForCausalLM
hunyuan_v1_dense: HunYuanDenseV1ForCausalLM
hunyuan_v1_moe: HunYuanMoEV1ForCausalLM
hy_v3: HYV3ForCausalLM
ernie4_5: Ernie4_5ForCausalLM
ernie4_5_moe: Ernie4_5_MoeForCausalLM
llama4_text: Llama4ForCausalLM EagleLlama4ForCausalLM
nemotron-nas: DeciLMForCausalLM
"""
"""The model_type as which a class is read if its file has no known one."""

_BY_THE_LANGUAGE_MODEL = """
AriaForConditionalGeneration AudioFlamingo3ForConditionalGeneration BeeForConditionalGeneration
Cohere2VisionForConditionalGeneration Eagle2_5_VLForConditionalGeneration Exaone4_5_ForConditionalGeneration
Gemma3ForConditionalGeneration Gemma3nForConditionalGeneration Gemma4ForConditionalGeneration
Gemma4UnifiedForConditionalGeneration GLM4VForCausalLM Glm4vForConditionalGeneration Glm4vMoeForConditionalGeneration
GlmAsrForConditionalGeneration Granite4VisionForConditionalGeneration GraniteSpeechForConditionalGeneration
GraniteSpeechPlusForConditionalGeneration H2OVLChatModel HunYuanVLForConditionalGeneration
Idefics3ForConditionalGeneration InternS1ForConditionalGeneration InternVLChatModel InternVLForConditionalGeneration
IsaacForConditionalGeneration KananaVForConditionalGeneration KeyeForConditionalGeneration
KeyeVL1_5ForConditionalGeneration KimiK25ForConditionalGeneration KimiVLForConditionalGeneration
Lfm2VlForConditionalGeneration LightOnOCRForConditionalGeneration Llama4ForConditionalGeneration
Llama_Nemotron_Nano_VL LlamaNemotronVLForSequenceClassification LlamaNemotronVLModel LlavaForConditionalGeneration
LlavaNextForConditionalGeneration LlavaNextVideoForConditionalGeneration LlavaOnevisionForConditionalGeneration
MiniCPMV4_6ForConditionalGeneration MiniCPMV4_7ForConditionalGeneration Mistral3ForConditionalGeneration
NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3 NemotronH_Super_Omni_Reasoning_V3
NVLM_D OpenCUAForConditionalGeneration Ovis Ovis2_5 Ovis2_6_MoeForCausalLM Ovis2_6ForCausalLM
PaddleOCRVLForConditionalGeneration PaliGemmaForConditionalGeneration Phi3VForCausalLM Phi4ForCausalLMV
Phi4MMForCausalLM PixtralForConditionalGeneration QianfanOCRForConditionalGeneration
Qwen2_5_VLForConditionalGeneration Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel
Qwen2AudioForConditionalGeneration Qwen2VLForConditionalGeneration Qwen3_5ForConditionalGeneration
Qwen3_5MoeForConditionalGeneration Qwen3ASRForConditionalGeneration Qwen3ASRRealtimeGeneration
Qwen3OmniMoeForConditionalGeneration Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration
Qwen4ExpForConditionalGeneration RForConditionalGeneration SkyworkR1VChatModel SmolVLMForConditionalGeneration
UltravoxModel VoxtralForConditionalGeneration VoxtralRealtimeGeneration
"""
"""Encoders with a language model, whose own model_type applies."""

_WRAPPERS = """
aria audioflamingo3 bee cohere2_vision eagle_2_5_vl eagle2_5_vl exaone4_5 glmasr granite_speech granite_speech_plus
granite4_vision h2ovl_chat hunyuan_vl idefics3 interns1 internvl internvl_chat keye keye_vl1_5 kimi_vl lfm2_vl
lightonocr llama_nemotron_vl llava llava_next llava_next_video llava_onevision minicpmv4_6 minicpmv4_7 mistral3
nemotron_h_omni NVLM_D paligemma phi3_v phi4mm pixtral qianfan_ocr qwen2_audio qwen2_5_omni qwen3_asr qwen3_omni_moe
r_vl skywork_chat smolvlm ultravox voxtral voxtral_realtime shieldgemma2
"""
"""Their model_types: the language model's applies, or Llama's if it has none."""

SUPPORTED: Mapping[str, str] = {
    **{
        name: family
        for family, _, names in (line.partition(": ") for line in _PLANNED.strip().splitlines())
        for name in names.split()
    },
    **dict.fromkeys(_BY_THE_LANGUAGE_MODEL.split(), ""),
}
"""Supported classes, with the model_type as which they are read if their file has no known one; empty: their language
model's."""
_READ = (version for version in known_versions() if order(version) >= order(DEFAULT))
UNSUPPORTED = frozenset().union(*(words(version, "architectures") for version in _READ)) - SUPPORTED.keys()
"""Of the default version and later ones; classes that these dropped are read by model_type."""
WITHOUT_A_CACHE = frozenset(
    {
        "LlamaBidirectionalModel",
        "LlamaBidirectionalForSequenceClassification",
        "LlamaNemotronVLModel",
        "LlamaNemotronVLForSequenceClassification",
        "VoyageQwen3BidirectionalEmbedModel",
    }
)
"""Decoder classes that vLLM turns into encoders (model_executor/models/config.py, is_causal)."""
_MODEL_TYPES = frozenset((*_WRAPPERS.split(), *filter(None, SUPPORTED.values())))
_OWN_LAYERS = """
deepseek_v4
deepseek_v2 deepseek_v3 kimi_k2 axk1 glm4_moe_lite
minicpm3
kimi_linear
qwen3_next qwen3_5 qwen3_5_moe
qwen4_exp
olmo_hybrid
mamba
falcon_mamba
mamba2
falcon_h1
bamba granitemoehybrid
jamba
nemotron_h
minimax
lfm2 lfm2_moe
"""
"""Families with distinct layers, those with equal ones in one line: a class and a model_type of two lines describe no
model. Encoders are one more line, all others the last."""
_LINES = {name: line for line in _OWN_LAYERS.strip().splitlines() for name in line.split()}


def _line(model_type: str) -> str:
    name = canonical(model_type)
    return _LINES.get(name, "encoders" if family_of(name).is_encoder else "others")


def has_unsupported(classes: object) -> bool:
    """Whether a list of classes in a file names one that is not supported."""
    return isinstance(classes, list) and any(isinstance(name, str) and name in UNSUPPORTED for name in classes)


def read_as(model_type: str, classes: Sequence[str]) -> str:
    """The model_type as which a model is read; Unplanned where that would be a guess. Facts without class and type are
    read."""
    found = next((name for name in classes if name in SUPPORTED or name in UNSUPPORTED), None)
    if not model_type and not classes:
        return ""
    is_known = canonical(model_type) in FAMILIES or model_type in _MODEL_TYPES
    family = SUPPORTED.get(found or "")
    if is_known and found not in UNSUPPORTED:
        if family and _line(family) != _line(model_type):
            raise UnsupportedModel(PAIR, f"{found}, {model_type}")
        return model_type
    if family:
        return family
    if model_type and not is_known:
        raise UnsupportedModel("model_type", model_type)
    raise UnsupportedModel("architectures", found or classes[0])
