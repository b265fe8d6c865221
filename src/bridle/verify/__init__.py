"""Is a model faithful here? Conversations played over its tokenizer and template, and what they prove or refute."""
