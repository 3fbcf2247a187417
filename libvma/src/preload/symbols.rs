//! The one list of interposed names. `ci/abi` compares it with what the library exports, and
//! `real` finds libc's definition of each.

/// Calls a macro with the list.
macro_rules! with_symbols {
    ($macro:ident) => {
        $macro! {
            // symbols:begin
            accept,
            accept4,
            bind,
            close,
            close_range,
            closefrom,
            connect,
            creat,
            daemon,
            dup,
            dup2,
            dup3,
            epoll_create,
            epoll_create1,
            epoll_ctl,
            epoll_pwait,
            epoll_pwait2,
            epoll_wait,
            fcntl,
            fcntl64,
            fdopen,
            fork,
            getpeername,
            getsockname,
            getsockopt,
            ioctl,
            listen,
            open,
            open64,
            pipe,
            pipe2,
            poll,
            ppoll,
            pselect,
            read,
            readv,
            recv,
            recvfrom,
            recvmmsg,
            recvmsg,
            select,
            send,
            sendfile,
            sendfile64,
            sendmmsg,
            sendmsg,
            sendto,
            setsockopt,
            shutdown,
            sigaction,
            signal,
            socket,
            socketpair,
            syscall,
            vfork,
            vma_exit, // ours alone: a dlopen user calls it before dlclose
            write,
            writev,
            __close, // libc's other name of close, which some programs link to
            __poll_chk,
            __ppoll_chk,
            __read_chk,
            __recv_chk,
            __recvfrom_chk,
            __res_iclose,
            // symbols:end
        }
    };
}
pub(super) use with_symbols;
