"""The arithmetic of autoscaling: pure numbers, no clock, no objects.

recommendation.py    metrics to replicas
pace.py              how fast replicas may follow: panic, stabilisation, bounds per period
windows.py           what was recommended and done in the past
mix.py               one number spread over several kinds of hardware, the cheapest first
ratio.py             prefill and decode kept in proportion
histogram.py         a quantile of what happened between two looks at a histogram
"""
