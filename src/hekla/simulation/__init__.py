"""What would happen: traces run through the placement engine in virtual time, by the code that schedules live clusters."""
