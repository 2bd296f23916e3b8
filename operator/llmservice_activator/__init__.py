"""The activator: KEDA's scaler for LLMServices, and where their requests are held while no replica serves. A process of
its own."""
