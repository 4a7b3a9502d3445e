//! The words that `asb` and the supervisor of a sandbox share.
//!
//! The program of this package is the supervisor itself: process 1 of every sandbox, started once by whatever `asb`
//! is running and then independent of it. [`launch`] is what it is given at birth, [`wire`] how it is talked to later;
//! [`calls`] and [`confine`] are what programs inside are kept from.

pub mod calls;
pub mod confine;
pub mod launch;
pub mod powers;
pub mod wire;
