/* SPDX-License-Identifier: Apache-2.0 */
/* Every cause that an operator, a test or a caller tells apart: number, name,
 * exit status, meaning. Numbers and names are frozen: processes send each other
 * the number, and the JSON log has the name. A new code takes a free number and
 * a new MESSAGE_VERSION, since a receiver refuses a number that it does not
 * know. docs/running.md has the same table. */
#ifndef CAPSTAN_FAILURE_CODES_H
#define CAPSTAN_FAILURE_CODES_H

/* X(number, name, status, meaning) for each, by theme. */
#define FAILURE_CODES(X)                                                       \
    X(1, HUNG_UP, HUNG_UP, "this process received SIGHUP")                     \
    X(2, INTERRUPTED, INTERRUPTED, "this process received SIGINT")             \
    X(3, TERMINATED, TERMINATED, "this process received SIGTERM")              \
    X(4, RUN_INTERRUPTED, RETRY,                                               \
      "another process of the run received a signal")                          \
    X(5, RUN_ENDED, RETRY,                                                     \
      "the run ended before this process was done with it")                    \
    X(6, CANCELLED, RETRY,                                                     \
      "given up because another part of the process failed first")             \
    X(10, USAGE, CONFIG, "the verb or its arguments are not as --help says")   \
    X(11, UNKNOWN_FLAG, CONFIG, "no such flag")                                \
    X(12, BAD_FLAG_VALUE, CONFIG,                                              \
      "the value of a flag, or of its variable, is not allowed")               \
    X(13, FLAG_CONFLICT, CONFIG, "flags that do not go together")              \
    X(14, BAD_VARIABLE, CONFIG,                                                \
      "the value of a CAPSTAN_ variable is not allowed")                       \
    X(15, PROGRAM_MISSING, CONFIG,                                             \
      "a program to start is missing or cannot be executed")                   \
    X(16, PROGRAM_FAILED, FAILED, "a helper program ended with an error")      \
    X(17, LIMIT_TOO_LOW, CONFIG,                                               \
      "a resource limit of the process (ulimit) is too low")                   \
    X(18, OUTPUT_UNUSABLE, CONFIG,                                             \
      "an output file or directory cannot be made or written")                 \
    X(123, SECRET_UNUSABLE, CONFIG,                                            \
      "a secret file cannot be read, others may use it, or it has no secret")  \
    X(20, JOB_MISSING, CONFIG, "the process that leads the run has no job")    \
    X(21, JOB_UNREADABLE, CONFIG, "a job file or its folder cannot be read")   \
    X(22, JOB_INVALID, CONFIG, "a job file or key is not valid")               \
    X(23, JOB_UNFIT, CONFIG, "job and cluster do not fit each other")          \
    X(24, JOB_TOO_LARGE, CONFIG,                                               \
      "the job never fits into the memory of the hosts")                       \
    X(30, CLUSTER_INVALID, CONFIG, "the cluster description is not valid")     \
    X(31, CLUSTER_DIFFERS, CONFIG,                                             \
      "a process and the chief describe different clusters")                   \
    X(32, SLOT_TAKEN, CONFIG, "a live process holds this task already")        \
    X(33, SLOT_UNKNOWN, CONFIG, "the run has no such task")                    \
    X(34, WRONG_CHIEF, RETRY, "the chief that answered leads another job")     \
    X(35, NO_CHIEF, RETRY, "the chief did not answer within the join timeout") \
    X(36, MEMBER_ABSENT, RETRY, "a listed process did not join in time")       \
    X(37, DECLARED_DEAD, RETRY, "the chief has declared this process dead")    \
    X(38, NO_TRAINER, RETRY, "no trainer is left")                             \
    X(39, MEMBER_MISCONFIGURED, FAILED,                                        \
      "a process found its configuration wrong during training")               \
    X(40, PORT_IN_USE, RETRY, "another process on this host has the port")     \
    X(41, CANNOT_LISTEN, CONFIG, "the system refuses to listen on the port")   \
    X(42, ADDRESS_UNRESOLVED, RETRY, "no address is known for a host")         \
    X(43, CONNECTION_FAILED, RETRY, "a connection could not be made")          \
    X(44, NETWORK_DOWN, RETRY,                                                 \
      "the network, or a host on it, cannot be reached")                       \
    X(45, PEER_SILENT, RETRY, "a process did not answer in time")              \
    X(46, PEER_LOST, RETRY, "a process that the run needs is gone")            \
    X(47, PEER_REFUSED, FAILED, "a ps refused a request")                      \
    X(48, STEP_TIMEOUT, RETRY,                                                 \
      "a step or a phase of the run did not end in time")                      \
    X(49, COLLECTIVE_FAILED, RETRY,                                            \
      "a collective operation failed, and no rank is known as the cause; "     \
      "or NCCL did not end its group of ranks in time, and the text says "     \
      "what came before")                                                      \
    X(50, COLLECTIVE_UNUSABLE, FAILED,                                         \
      "the collective backend cannot work on this host")                       \
    X(51, BAD_MESSAGE, FAILED, "a message breaks the protocol")                \
    X(52, VERSION_MISMATCH, FAILED, "processes of different releases")         \
    X(53, LINK_UNUSABLE, FAILED,                                               \
      "`capstan cluster --check` found addresses that do not answer")          \
    X(55, PLUGIN_MISSING, CONFIG,                                              \
      "a plugin or its library is missing or does not fit")                    \
    X(56, NO_DEVICE, CONFIG, "there is no GPU, or no driver")                  \
    X(57, DEVICE_UNUSABLE, CONFIG,                                             \
      "a device does not support what is asked of it")                         \
    X(58, TOO_FEW_DEVICES, CONFIG,                                             \
      "a process has fewer devices than the run needs")                        \
    X(59, DEVICES_DIFFER, CONFIG,                                              \
      "trainers have different numbers of devices")                            \
    X(60, DEVICE_LOST, RETRY, "a device failed, does not answer, or has gone") \
    X(61, DEVICE_TIMEOUT, RETRY, "a device did not finish its work in time")   \
    X(62, DEVICE_MEMORY, FAILED, "a device has too little memory")             \
    X(65, NO_MEMORY, RETRY, "memory is short now")                             \
    X(66, TOO_LITTLE_MEMORY, FAILED, "memory is short, and would be again")    \
    X(67, NO_DESCRIPTORS, RETRY, "file descriptors are short now")             \
    X(68, SYSTEM_BUSY, RETRY,                                                  \
      "threads, buffers or another resource are short now")                    \
    X(69, SYSTEM_REFUSED, FAILED,                                              \
      "the system refuses a thread, process, socket or descriptor")            \
    X(70, DISK_FULL, FAILED, "a disk is full")                                 \
    X(71, IO_ERROR, RETRY, "a disk or network mount failed")                   \
    X(72, FILE_UNREADABLE, FAILED, "a file or directory cannot be read")       \
    X(73, FILE_UNWRITABLE, FAILED,                                             \
      "a file or directory cannot be written or removed")                      \
    X(74, NAME_TOO_LONG, FAILED, "a path or a name is too long")               \
    X(80, MODEL_INVALID, CONFIG, "the parameters of the model are not valid")  \
    X(81, MODEL_MISMATCH, CONFIG,                                              \
      "a trainer has another model or other data than rank 0")                 \
    X(82, WEIGHTS_UNREADABLE, CONFIG, "a file of weights cannot be opened")    \
    X(83, WEIGHTS_INVALID, CONFIG,                                             \
      "a file of weights has another format, or is damaged")                   \
    X(84, WEIGHTS_MISMATCH, CONFIG,                                            \
      "a file of weights does not fit the model")                              \
    X(85, DATA_UNREADABLE, CONFIG, "a file of data cannot be read")            \
    X(86, DATA_DAMAGED, CONFIG, "a file of data is damaged or incomplete")     \
    X(87, DATA_MISMATCH, CONFIG,                                               \
      "files of data do not fit each other or the model")                      \
    X(88, DATA_TOO_SMALL, CONFIG, "there are too few samples for a batch")     \
    X(120, BAD_RECORD, FAILED, "a record of the data is wrong")                \
    X(90, DIRECTORY_LOCKED, CONFIG,                                            \
      "another run is using the checkpoint directory")                         \
    X(122, DIRECTORY_HELD, RETRY,                                              \
      "another run is using the checkpoint directory, on another host, which " \
      "may have failed, or in another container")                              \
    X(91, DIRECTORY_NOT_SHARED, CONFIG,                                        \
      "the checkpoint directory is on one host alone")                         \
    X(121, TABLE_FULL, FAILED, "a table has all the rows it may have")         \
    X(92, CHECKPOINT_MISSING, FAILED, "there is no such checkpoint")           \
    X(93, RESUME_STEP_MISSING, CONFIG,                                         \
      "checkpoint.resume names a step without a checkpoint")                   \
    X(94, CHECKPOINT_DAMAGED, FAILED, "a checkpoint is damaged or incomplete") \
    X(95, CHECKPOINT_FOREIGN, FAILED, "another release wrote the checkpoint")  \
    X(96, CHECKPOINT_ELSEWHERE, FAILED,                                        \
      "another host holds a file of the checkpoint")                           \
    X(97, CHECKPOINT_INCOMPATIBLE, CONFIG,                                     \
      "a checkpoint does not fit the job")                                     \
    X(98, CHECKPOINT_NOT_WRITTEN, FAILED, "a checkpoint could not be written") \
    X(99, EXPORT_NOT_WRITTEN, FAILED, "the weights could not be exported")     \
    X(100, NO_NEW_CHECKPOINT, RETRY,                                           \
      "an evaluator saw no new checkpoint in time")                            \
    X(110, LOSS_NOT_FINITE, FAILED,                                            \
      "the loss or a gradient is NaN or infinite")                             \
    X(111, LOSS_SCALE_TOO_LOW, FAILED,                                         \
      "gradients overflow at the least loss scale")                            \
    X(112, COMPARE_IMPOSSIBLE, CONFIG, "no case of a comparison is possible")  \
    X(113, COMPARE_FAILED, FAILED,                                             \
      "a comparison, or a case of it, could not be measured")                  \
    X(114, TIME_LIMIT, FAILED,                                                 \
      "a run of a comparison took longer than its limit")                      \
    X(115, SIMULATION_INVALID, CONFIG,                                         \
      "a simulation's figures are not allowed")                                \
    X(116, SIMULATION_FAILED, FAILED, "a simulation did not reach its end")    \
    X(117, CALLER_FAILED, FAILED, "the script or program of a trainer failed") \
    X(118, ENDS_DIFFER, FAILED,                                                \
      "a trainer ended its loop while another went on")                        \
    X(119, WRONG_CALL, CONFIG, "a call of the library that is not allowed")

#endif
