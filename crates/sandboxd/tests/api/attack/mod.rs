//! Attempts to break out, to block and to exhaust. Every one of them acts on a directory made for the test.

mod confinement;
mod exhaustion;
mod frames;
