/* The release. */
#ifndef CAPSTAN_VERSION_H
#define CAPSTAN_VERSION_H

#define VERSION_TEXT "0.1.0"

#endif
