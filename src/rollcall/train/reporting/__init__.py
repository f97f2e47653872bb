"""What a training reports: its mean loss, its metrics on disk, its progress in the terminal.

meter         the mean loss over all samples of all ranks
metrics_log   metrics.jsonl, and the same values for TensorBoard
tensorboard   writes TensorBoard's files
append        appends to a file completely or not at all
progress_bar  how much of the epoch is done
progress_file the same in the run's folder, for others who look at the run
trackers      sends metrics to Weights & Biases or MLflow
"""
