/*
 * How busy the machine is: a process that measures, for tests/limit.h to read.
 */
#ifndef TESTS_RUNNER_METER_H
#define TESTS_RUNNER_METER_H

/* Puts the file into that folder; the first number is there when this returns. */
void meter_start(const char *folder);

/* Ends the process and removes the file. */
void meter_stop(void);

#endif
