"""Rank 1 has no scores to report, returns before the gather and leaves; the others wait for it.

ranks: 3
kind: missing-rank
look at: 1
ends: fails
"""

import torch.distributed as dist


def keep_confident(scores, threshold):
    return [score for score in scores if score > threshold]


def gather_scores(scores):
    """Return the scores of all ranks in one list."""
    if scores is None:
        return []
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, scores)  # GUILTY
    return [score for part in everyone for score in part]


def evaluate(rank):
    raw = {0: [0.9, 0.2, 0.7], 1: [0.1, 0.3], 2: [0.8, 0.6]}[rank]
    scores = keep_confident(raw, threshold=0.5)
    merged = gather_scores(scores or None)
    if merged:
        print(f"rank {rank}: mean {sum(merged) / len(merged):.2f} of {len(merged)} scores")


def main():
    dist.init_process_group("gloo")
    evaluate(dist.get_rank())
    dist.destroy_process_group()


main()
