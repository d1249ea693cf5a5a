"""What a service endures in a lab: one fault after the other, and a day of requests."""
