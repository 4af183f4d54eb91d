/* Whether sessions with a shared secret are possible. */
#include "session/secret.h"
#include "tools/doctor.h"

#include <dlfcn.h>

void doctor_check_secret(struct doctor *doctor)
{
    for (const char *const *name = secret_libraries; *name != NULL; name++) {
        void *library = dlopen(*name, RTLD_NOW | RTLD_LOCAL);

        if (library == NULL)
            continue;
        dlclose(library);
        doctor_find(doctor, DOCTOR_OK, "libsodium", "%s: sessions can have a secret", *name);
        return;
    }
    doctor_find(doctor, DOCTOR_NOTE, "libsodium", "not there: sessions with a secret do not start");
    doctor_advise(doctor, "if you want any, install it (Debian: libsodium23)");
}
