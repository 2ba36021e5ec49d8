"""The steps that schedules are made of, for any chip: functions from kernel to kernel."""
