//! The RPM packages, with rpm's own tools, on systems that have what RHEL and its kin have.

mod busybox;
mod erase;
mod install;
mod key;
mod lint;
mod made;
mod repositories;
mod reproducible;
mod scratch;
mod scriptlets;
mod service;
mod system;
mod upgrade;
mod yum;
