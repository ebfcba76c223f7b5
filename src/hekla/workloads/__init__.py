"""Reconcilers of jobs, job flows, cron jobs, pod groups and queues."""
