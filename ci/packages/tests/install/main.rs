//! `packaging/install.sh` and the workflow for a public CI.
//!
//! What is installed is what `ci/build-packages` left in the target folder: the building itself is the
//! same two commands there and in the script, and takes minutes.

mod configuration;
mod image;
mod privileges;
mod sources;
mod system;
mod words;
mod workflow;
