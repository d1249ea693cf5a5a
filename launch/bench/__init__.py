"""The other suites of measurements: offloading, the papers' figures, plans that follow a change."""
