"""The scaler: KEDA's external scaler for LLMServices whose replicas follow their load. A process of its own."""
