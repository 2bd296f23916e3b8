module llmservice.dev/localcluster/envoy-gateway

go 1.26.6

require (
	github.com/envoyproxy/ai-gateway v1.0.0
	github.com/envoyproxy/gateway v1.9.1
)
