//! What only this implementation has.

use super::{Kind, Param, param};

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_XDP", Kind::Text, "auto", "XDP interfaces", "Interfaces to attach to: auto (veth and tap), all, off, or a list of names"),
    param("VMA_XDP_MODE", Kind::OneOf(&["auto", "native", "generic", "tc"]), "auto", "XDP mode", "Where the steering program runs: native: in the driver; generic: in the kernel's XDP hook; tc: in the tc ingress hook, from where it writes to the library's memory itself (Linux 6.6). auto: on virtual interfaces tc, or else native on a veth, or else generic; on others native, or else generic. Before Linux 6.6 TCP is the kernel's with generic"),
    param("VMA_XDP_ATTACH", Kind::OneOf(&["background", "foreground"]), "background", "XDP attach", "When an interface is attached, which takes the kernel 10 to 40 ms. background: 100 ms after the first socket that connects or sends needs it, while the kernel serves the sockets; bind() to a port of the program's choice and listen() attach at once, because a server may give up its rights afterwards. foreground: at once, by any call that needs it, which waits"),
    param("VMA_LOCAL", Kind::Flag, "1", "Local", "1: processes of this host talk through shared memory, if they are the same user's and both use the library"),
    param("VMA_IO_URING", Kind::Flag, "0", "io_uring", "1: io_uring_setup() works; programs that register sockets with it are then not offloaded correctly"),
];
