//! `ticketing-bindgen`.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ticketing_bindgen::main()
}
