/* Counts the further connections to each process. */
#include "net/link/budget.h"

#include "base/config.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

struct account {
    uint64_t process;
    unsigned taken; /* 0: this place is free */
};

/* Guards the two below. */
static pthread_mutex_t budget_lock = PTHREAD_MUTEX_INITIALIZER;
static struct account *accounts;
static size_t account_count;

static struct account *budget_find(uint64_t process)
{
    for (size_t i = 0; i < account_count; i++)
        if (accounts[i].taken > 0 && accounts[i].process == process)
            return &accounts[i];
    return NULL;
}

/* A place for a process that has nothing yet; NULL: there is no memory. */
static struct account *budget_open_account(uint64_t process)
{
    enum { MORE = 16 };
    struct account *place = NULL;
    struct account *grown;

    for (size_t i = 0; i < account_count && place == NULL; i++)
        if (accounts[i].taken == 0)
            place = &accounts[i];
    if (place == NULL) {
        grown = realloc(accounts, (account_count + MORE) * sizeof *accounts);
        if (grown == NULL)
            return NULL;
        accounts = grown;
        place = &accounts[account_count];
        for (int i = 0; i < MORE; i++)
            accounts[account_count++] = (struct account){0};
    }
    place->process = process;
    return place;
}

int budget_take(uint64_t process, unsigned wanted, unsigned *granted)
{
    const struct config *config;
    struct account *account;
    unsigned left;
    int result = config_get(&config);

    if (result != TCPX_SUCCESS)
        return result;
    pthread_mutex_lock(&budget_lock);
    account = budget_find(process);
    left = (unsigned)config->socket_budget;
    if (account != NULL)
        left = (left > account->taken ? left - account->taken + 3 : 0) / 4;
    *granted = wanted < left ? wanted : left;
    if (account == NULL && *granted > 0)
        account = budget_open_account(process);
    if (account != NULL)
        account->taken += *granted;
    else if (*granted > 0)
        result = error_system(ENOMEM, "a connection");
    pthread_mutex_unlock(&budget_lock);
    return result;
}

void budget_give(uint64_t process, unsigned granted)
{
    struct account *account;

    pthread_mutex_lock(&budget_lock);
    account = budget_find(process);
    if (account != NULL)
        account->taken -= granted < account->taken ? granted : account->taken;
    pthread_mutex_unlock(&budget_lock);
}
