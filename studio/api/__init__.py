"""The REST API: OpenAI's files, models and fine-tuning jobs, and our few routes beside them."""
