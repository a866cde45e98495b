"""Who should act on a job that failed, and whether a restart helps: an ordered list of rules over verdict and facts.

The facts are what hosts know beside the records: ends of processes, kernel logs, kills for want of memory, NCCL's RAS.
"""
