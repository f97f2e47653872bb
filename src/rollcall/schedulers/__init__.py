"""Submits a whole run to a scheduler and follows it there.

slurm_script, slurm_job, slurm_state         the batch script; submitting and following it; the states of the job
k8s_manifest, k8s_job, k8s_state, kubectl    the same for a Kubernetes Job, by kubectl
"""
