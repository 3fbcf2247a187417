/* Runs a program under what a container engine's default seccomp profile allows a process without capabilities, as far as the library's and
 * the tests' programs could meet it (moby, profiles/seccomp/default.json): the calls below are refused with EPERM, clone3() with
 * ENOSYS, so that the C library takes clone(). With the first argument "+bpf", bpf() is allowed, as to a container with CAP_BPF. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define REFUSE(error) RETURN(SECCOMP_RET_ERRNO | (error))

static const int refused[] = {
	SYS_acct, SYS_add_key, SYS_clock_settime, SYS_delete_module, SYS_finit_module, SYS_fsconfig, SYS_fsmount, SYS_fsopen,
	SYS_fspick, SYS_init_module, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_kcmp, SYS_kexec_load,
	SYS_keyctl, SYS_mbind, SYS_mount, SYS_mount_setattr, SYS_move_mount, SYS_move_pages, SYS_open_by_handle_at, SYS_open_tree,
	SYS_perf_event_open, SYS_pivot_root, SYS_quotactl, SYS_reboot, SYS_request_key, SYS_set_mempolicy, SYS_setns,
	SYS_settimeofday, SYS_swapoff, SYS_swapon, SYS_syslog, SYS_umount2, SYS_unshare, SYS_userfaultfd, SYS_vhangup,
};

int main(int argc, char **argv)
{
	struct sock_filter steps[2 * (sizeof refused / sizeof *refused) + 16];
	unsigned short count = 0;
	int with_bpf = argc > 1 && strcmp(argv[1], "+bpf") == 0;
#define ADD(...) steps[count++] = (struct sock_filter)__VA_ARGS__
#define IS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1)
	ADD(LOAD(nr));
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		ADD(IS(refused[i]));
		ADD(REFUSE(EPERM));
	}
	if (!with_bpf) {
		ADD(IS(SYS_bpf));
		ADD(REFUSE(EPERM));
	}
	ADD(IS(SYS_clone3));
	ADD(REFUSE(ENOSYS));
	ADD(RETURN(SECCOMP_RET_ALLOW));
	struct sock_fprog program = { count, steps };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
		perror("seccomp");
		return 1;
	}
	argv += 1 + with_bpf;
	execvp(argv[0], argv);
	perror(argv[0]);
	return 1;
}
