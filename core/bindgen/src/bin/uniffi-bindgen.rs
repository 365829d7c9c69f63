//! The generator under the name that maturin runs.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    ticketing_bindgen::main()
}
