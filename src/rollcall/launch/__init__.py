"""Starting ranks. Read in the order of the data: plan → launcher → agent → forkserver → rank → console."""
