"""The activator: KEDA's external scaler for LLMServices, and the process that holds their requests while no replica
serves."""
