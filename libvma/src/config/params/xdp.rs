//! What only this implementation has.

use super::{Kind, Param, param};

#[rustfmt::skip] // a table reads as rows
pub(super) const PARAMS: &[Param] = &[
    param("VMA_XDP", Kind::Text, "auto", "XDP interfaces", "Interfaces to attach to: auto (virtual ones), all, off, or a list of names"),
    param("VMA_XDP_MODE", Kind::OneOf(&["auto", "native", "generic"]), "auto", "XDP mode", "Where the steering program runs"),
    param("VMA_LOCAL", Kind::Flag, "1", "Local", "1: processes of this host talk through shared memory, if they are the same user's and both use the library"),
    param("VMA_IO_URING", Kind::Flag, "0", "io_uring", "1: io_uring_setup() works; programs that register sockets with it are then not offloaded correctly"),
];
