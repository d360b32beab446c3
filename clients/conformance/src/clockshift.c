/* Runs a program whose wall clock can be moved while it runs:
 *
 *     clockshift FILE PROGRAM [ARGUMENT...]
 *
 * FILE holds a 64-bit integer: the seconds to add to what the program, and all that it starts, reads of the wall clock.
 * The clocks that can't be set (CLOCK_MONOTONIC, CLOCK_BOOTTIME) stay as they are.
 *
 * A preloaded library reaches neither Go nor static programs, and a time namespace moves only the clocks that can't be set. So
 * the kernel stops each read of the wall clock (seccomp), and this program answers it (ptrace). Programs read clocks without the
 * kernel where it lets them (vDSO); that is taken from them when they start. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef __x86_64__
#error "written for x86-64"
#endif

#define TRACE(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE)

static const volatile int64_t *offset;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

/* Stops this process at each read of the wall clock from now on. */
static void stop_at_wall_clock(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        TRACE(SYS_gettimeofday),
        TRACE(SYS_time),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        TRACE(CLOCK_REALTIME),
        TRACE(CLOCK_REALTIME_COARSE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("no_new_privs");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) fail("seccomp");
}

static void write_to(pid_t pid, unsigned long address, const void *value, size_t size) {
    struct iovec here = {(void *)value, size}, there = {(void *)address, size};
    if (address) process_vm_writev(pid, &here, 1, &there, 1, 0);
}

/* A program that has just been started learns from its auxiliary vector where the vDSO is. */
static void take_vdso_away(pid_t pid) {
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, 0, &registers)) return;
    unsigned long at = registers.rsp;
    at += 8 * (1 + ptrace(PTRACE_PEEKDATA, pid, at, 0) + 1);          /* argc, argv, NULL */
    while (ptrace(PTRACE_PEEKDATA, pid, at, 0)) at += 8;              /* envp */
    for (at += 8;; at += 16) {                                        /* NULL */
        long type = ptrace(PTRACE_PEEKDATA, pid, at, 0);
        if (type == AT_NULL) return;
        if (type == AT_SYSINFO_EHDR) ptrace(PTRACE_POKEDATA, pid, at, AT_IGNORE);
    }
}

/* Answers a read of the wall clock instead of the kernel. */
static void answer(pid_t pid) {
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, 0, &registers)) return;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += *offset;
    registers.rax = 0;
    switch (registers.orig_rax) {
    case SYS_clock_gettime:
        write_to(pid, registers.rsi, &now, sizeof now);
        break;
    case SYS_gettimeofday: {
        struct timeval time = {now.tv_sec, now.tv_nsec / 1000};
        write_to(pid, registers.rdi, &time, sizeof time);
        break;
    }
    case SYS_time:
        registers.rax = now.tv_sec;
        write_to(pid, registers.rdi, &now.tv_sec, sizeof now.tv_sec);
        break;
    }
    registers.orig_rax = -1; /* nothing is left to do for the kernel */
    ptrace(PTRACE_SETREGS, pid, 0, &registers);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: clockshift FILE PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    int file = open(argv[1], O_RDONLY | O_CLOEXEC);
    if (file < 0) fail(argv[1]);
    offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (offset == MAP_FAILED) fail("mmap");

    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        stop_at_wall_clock();
        execvp(argv[2], argv + 2);
        fail(argv[2]);
    }
    /* Signals to the process group are the program's. */
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    close(0);
    close(1);
    int status;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0,
           PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK |
               PTRACE_O_TRACEVFORK);
    ptrace(PTRACE_CONT, child, 0, 0);
    for (;;) {
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) return 1;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (pid == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        int signal_of = WSTOPSIG(status), event = status >> 16;
        if (event == PTRACE_EVENT_SECCOMP) answer(pid);
        if (event == PTRACE_EVENT_EXEC) take_vdso_away(pid);
        /* A thread or process that has just begun to be traced stops once; that is no signal of its own. */
        if (event || signal_of == SIGSTOP) signal_of = 0;
        ptrace(PTRACE_CONT, pid, 0, signal_of);
    }
}
