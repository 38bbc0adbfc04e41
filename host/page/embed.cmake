# Writes the file FROM as a C++ string into the file TO.
file(READ "${FROM}" text)
file(WRITE "${TO}" "#include \"host/page/front.h\"\n\nconst std::string_view specd::host::kPageHtml = R\"specd_page(${text})specd_page\";\n")
