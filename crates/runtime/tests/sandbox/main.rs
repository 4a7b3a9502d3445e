//! Real sandboxes on this machine. Needs root, and says so when it is not.

#[macro_use]
mod common;

mod adopt;
mod attach;
mod attack;
mod beside;
mod conformance;
mod driver;
mod exec;
mod exhaust;
mod ids;
mod image;
mod init_system;
mod kernel;
mod life;
mod limits;
mod privileged;
mod process_one;
mod quota;
mod slot;
mod supervisor;
mod timing;
mod volume;
