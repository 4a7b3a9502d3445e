//! Real sandboxes on this machine. Needs root, and says so when it is not.

mod adopt;
mod attach;
mod attack;
mod common;
mod exec;
mod image;
mod life;
mod limits;
mod slot;
mod supervisor;
mod timing;
mod volume;
