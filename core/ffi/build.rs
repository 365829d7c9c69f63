//! Generates the scaffolding from the one interface definition.

fn main() {
    uniffi::generate_scaffolding("src/ticketing.udl").expect("ticketing.udl is valid");
}
