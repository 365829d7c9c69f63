//! S10 under load: the end with many waiters, and reloads good and bad.
