//! Generates the scaffolding from the one interface definition, and the version of that.

const DEFINITION: &str = "src/ticketing.udl";

fn main() {
    uniffi::generate_scaffolding(DEFINITION).expect("ticketing.udl is valid");
    let definition = std::fs::read_to_string(DEFINITION).expect("it was read above");
    println!(
        "cargo::rustc-env=TICKETING_INTERFACE={:016x}",
        version(&definition)
    );
}

/// FNV-1a of what is neither a comment nor space around a line.
fn version(definition: &str) -> u64 {
    let lines = definition.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    let bytes = lines.flat_map(|line| line.bytes().chain([b'\n']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
