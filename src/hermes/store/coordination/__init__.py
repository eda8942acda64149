"""Several processes on one store: leases, scheduled prompts, drafts."""
