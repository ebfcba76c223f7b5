"""What the commands for jobs, queues and flows do, told apart from how they are spelled.

`hekla job` and `hekla queue` have one spelling, `vcctl` and `vsub` have Volcano's: both call the actions here, which take
an open connection. `columns.py` knows both ways of printing.
"""
