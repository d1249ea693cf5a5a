"""Virtual clusters on one machine: network namespaces, CPU quotas, shaped links."""
