"""The other suites: offloading, the papers' figures, plans that follow a change, language models and their peers."""
