"""What tests share: clusters, models, plans, jobs, command lines, references and fakes, each in one place."""
