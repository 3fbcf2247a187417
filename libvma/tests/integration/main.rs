//! Real programs under the library, in namespaces of their own. Needs root, and a library built by
//! `cargo build --release -p libvma`; see `harness`.

#[path = "../harness/mod.rs"]
mod harness;

mod agent;
mod allocation;
mod attach;
mod budget;
mod bursts;
mod capture;
mod configuration;
mod containers;
mod descriptors;
mod dual_stack;
mod dual_stack_datagrams;
mod extra;
mod fallback;
mod family;
mod faults;
mod forking;
mod grants;
mod hostile;
mod idle;
mod inherited;
mod integrity;
mod interfaces;
mod interrupted_malloc;
mod ipv6_datagrams;
mod ipv6_loopback;
mod ipv6_loopback_datagrams;
mod ipv6_multicast;
mod leaving;
mod live;
mod local;
mod many_threads;
mod members;
mod narrow_path;
mod prefork;
mod programs;
mod promises;
mod python;
mod receive_buffer;
mod regress;
mod robustness;
mod several;
mod short_datagrams;
mod sizes;
mod sockperf_options;
mod stats;
mod tcp;
mod tcp_readiness;
mod transparency;
mod udp_lat;
mod workers;
