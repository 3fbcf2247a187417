//! Two processes' pipes over a link in memory, and the kernel's connection below as two queues.

mod ends;
mod halves;
mod host;
mod kills;
mod model;
mod overflow;
mod random;
mod rest;
mod scenes;
