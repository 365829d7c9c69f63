//! The pipeline on a fake store, under a paused clock.
