"""What changed between two runs: `rollcall compare`.

calls       the first call at which they part
times       where the time went, and which differences are beyond noise
comparison  both of them, in words and as JSON
terminal    prints it; the page is in rollcall.report
"""
