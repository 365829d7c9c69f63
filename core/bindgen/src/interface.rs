//! The interface as text, so that a change of it is seen and reviewed.

use std::fmt::Write;

use anyhow::{Context, Result};
use camino::Utf8Path;
use uniffi_bindgen::ComponentInterface;
use uniffi_bindgen::interface::{AsType, Enum, Field, Function, Record, Type};

pub(crate) fn of_file(udl: &Utf8Path) -> Result<String> {
    let definition = std::fs::read_to_string(udl).with_context(|| format!("reading {udl}"))?;
    of(&definition).with_context(|| format!("the definition {udl}"))
}

/// Functions with their checksums, then the types, each by name.
fn of(definition: &str) -> Result<String> {
    let interface = ComponentInterface::from_webidl(definition, "ticketing_ffi")?;
    let mut text = format!(
        "UniFFI contract {}\n\n",
        interface.uniffi_contract_version()
    );
    for function in interface.function_definitions() {
        writeln!(text, "{}", of_function(function))?;
    }
    for record in interface.record_definitions() {
        text += &of_record(record);
    }
    for of_type in interface.enum_definitions() {
        let kind = match interface.is_name_used_as_error(of_type.name()) {
            true => "error",
            false => "enum",
        };
        text += &of_enum(kind, of_type);
    }
    Ok(text)
}

fn of_function(function: &Function) -> String {
    let arguments = function.arguments().into_iter().map(|argument| {
        let by_ref = if argument.by_ref() { "&" } else { "" };
        format!("{}: {by_ref}{}", argument.name(), name(&argument.as_type()))
    });
    let returns = function.return_type().map(|t| format!(" -> {}", name(t)));
    let throws = function
        .throws_type()
        .map(|t| format!(" throws {}", name(t)));
    format!(
        "{}({}){}{}  checksum {}",
        function.name(),
        arguments.collect::<Vec<_>>().join(", "),
        returns.unwrap_or_default(),
        throws.unwrap_or_default(),
        function.checksum()
    )
}

fn of_record(record: &Record) -> String {
    format!(
        "\nrecord {}\n  {}\n",
        record.name(),
        fields(record.fields(), "\n  ")
    )
}

fn of_enum(kind: &str, of_type: &Enum) -> String {
    let variants = of_type.variants().iter().map(|variant| {
        let fields = fields(variant.fields(), ", ");
        format!("  {}({fields})\n", variant.name())
    });
    format!(
        "\n{kind} {}\n{}",
        of_type.name(),
        variants.collect::<String>()
    )
}

fn fields(fields: &[Field], between: &str) -> String {
    let fields = fields
        .iter()
        .map(|field| format!("{}: {}", field.name(), name(&field.as_type())));
    fields.collect::<Vec<_>>().join(between)
}

fn name(of_type: &Type) -> String {
    match of_type {
        Type::Record { name, .. } | Type::Enum { name, .. } => name.clone(),
        Type::Optional { inner_type } => format!("{}?", name(inner_type)),
        Type::Sequence { inner_type } => format!("sequence<{}>", name(inner_type)),
        plain => format!("{plain:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_is_the_recorded_one() {
        let now = of(include_str!("../../ffi/src/ticketing.udl")).expect("it is valid");
        assert!(
            now == include_str!("../../ffi/interface.txt"),
            "the interface for other languages changed: review what that means for each of them, \
             then run\n\n  cargo run -p ticketing-bindgen -- interface > core/ffi/interface.txt\n\n{now}"
        );
    }

    #[test]
    fn every_change_of_a_definition_is_seen() {
        let definition = "
            namespace n { [Throws=E] i64 f(u32 a, [ByRef] bytes b); };
            dictionary D { sequence<string> s; string? o; };
            enum K { \"One\", \"Two\" };
            [Error] interface E { Bad(string detail); };
            [Enum] interface V { Empty(); Full(D d, K k); };";
        let text = of(definition).expect("it is valid");
        assert!(
            text.contains("\nf(a: UInt32, b: &Bytes) -> Int64 throws E  checksum "),
            "{text}"
        );
        assert!(
            text.contains("\nrecord D\n  s: sequence<String>\n  o: String?\n"),
            "{text}"
        );
        assert!(text.contains("\nenum K\n  One()\n  Two()\n"), "{text}");
        assert!(
            text.contains("\nerror E\n  Bad(detail: String)\n"),
            "{text}"
        );
        assert!(
            text.contains("\nenum V\n  Empty()\n  Full(d: D, k: K)\n"),
            "{text}"
        );
        for (from, to) in [
            ("u32 a", "u64 a"),
            ("\"Two\"", "\"Deux\""),
            ("D d, K k", "K k, D d"),
            ("i64 f", "i32 f"),
            ("string? o", "string o"),
        ] {
            let changed = of(&definition.replace(from, to)).expect("it is valid");
            assert_ne!(changed, text, "{from} became {to}");
        }
    }
}
