//! vmad as others see it: its protocol by an independent client, its start and end, its log, and what it
//! tells the service manager. The daemon and every client run in network namespaces of their own, with
//! their files in a directory of the test.

mod death;
mod harness;
mod protocol;
mod reload;
mod service;
mod start;
