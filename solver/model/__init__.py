"""What is computed: a model's description, and where its layers can be cut."""
