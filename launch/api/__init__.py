"""What a request may say: its fields, what each may be, and errors in OpenAI's shape. Nothing here answers anything."""
